"""The ground floor: margins, outputs, the registry and input checks; imports nothing else of noiseproof."""
