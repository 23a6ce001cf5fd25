"""What a loss does before training, from its formula and the margins of an untrained network."""
