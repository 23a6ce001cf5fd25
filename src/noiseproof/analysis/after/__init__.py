"""What trained models predict, what their features look like, and the loss around them."""
