"""Configuration and edges of the site; no product logic lives here."""
