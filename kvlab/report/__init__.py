"""One comparison told in a few pages: what was asked, who still answered, at what price, and what to distrust."""
