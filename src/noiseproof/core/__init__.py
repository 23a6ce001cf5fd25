"""Margins, outputs, specs, the registry and checks; imports nothing else of noiseproof."""
