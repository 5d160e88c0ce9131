"""Documents as people have them, as plain text: PDF, DOCX and HTML, with what was left out said."""
