"""What decisions on a designed sample of rows say about all labels: the noise rate, what is left, and P(wrong) of each row."""
