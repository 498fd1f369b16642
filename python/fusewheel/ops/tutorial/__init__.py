"""Small operators that show how one is written."""
