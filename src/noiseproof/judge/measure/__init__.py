"""What decisions on a designed sample of rows say about all labels."""
