"""The web page at `/`: HTML, CSS and ES modules as they are sent, without a build step (docs/page.md)."""
