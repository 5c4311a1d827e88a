"""How the web server runs."""
