"""What the demo shows: tables, a chart, and checks of what was computed."""
