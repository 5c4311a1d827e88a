"""Downloads of governance cards."""
