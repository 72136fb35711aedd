"""Attention of new tokens over a list of slots and over each other, with masks of several kinds."""
