"""Networks that exist already: files and timm's networks, read as what they are, foreign and possibly hostile."""
