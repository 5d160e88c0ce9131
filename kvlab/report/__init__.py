"""Files made of comparisons and stories: reports, talks, slides, pictures and animations."""
