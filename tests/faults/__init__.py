"""The fault suite: inject faults into real runs at exact points; compare the results with an uninterrupted run's."""
