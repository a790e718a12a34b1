"""Speed and memory, side by side with other ways to train the same model."""
