"""Segmentation of images: overlap, panoptic quality, distances between edges."""
