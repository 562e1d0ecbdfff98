"""What changed between two versions of a contract and whom it breaks; the accepted one; drafts from data."""
