"""Teachers: pretrained by searches, or registered from published weights."""
