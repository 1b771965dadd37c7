"""Rules that decide when a challenger becomes champion, from evaluations and predictions only."""
