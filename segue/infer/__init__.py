"""Reading with a trained model."""
