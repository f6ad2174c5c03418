"""What runs at a site, and what a site and the server agree on."""
