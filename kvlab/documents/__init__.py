"""Extract plain text from PDF, DOCX and HTML, and report what was left out."""
