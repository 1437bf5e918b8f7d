"""What is written about a results folder: tables, figures for print, and a page."""
