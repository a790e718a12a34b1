"""The other ways to train: each module has `train(job, clock)`."""
