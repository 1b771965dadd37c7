"""The user's images: what `--data` holds, its layout and labels, and how files become rows of a raw dataset."""
