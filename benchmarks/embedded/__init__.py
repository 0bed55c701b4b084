"""What the embedded engine costs, and what reading together saves."""
