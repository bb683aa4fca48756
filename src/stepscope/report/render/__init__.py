"""Tables to text: for a terminal, Markdown and CSV."""
