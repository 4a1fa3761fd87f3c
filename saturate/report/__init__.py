"""What a run says about itself: log lines, progress, and advice."""
