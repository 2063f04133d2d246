"""What serves one paper or one kind of study; it imports the core, and the core never imports it. See README.md."""
