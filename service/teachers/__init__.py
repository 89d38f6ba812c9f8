"""Teachers that searches have pretrained."""
