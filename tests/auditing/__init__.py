"""Tests of what finds suspects."""
