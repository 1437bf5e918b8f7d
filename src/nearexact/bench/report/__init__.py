"""What readers get of a results folder: tables, figures for print, and a page."""
