"""Extract plain text from PDF, DOCX, HTML and notebooks, and report what was left out."""
