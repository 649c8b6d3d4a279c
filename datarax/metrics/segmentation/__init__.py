"""Segmentations of images: overlap, panoptic quality and distance of boundaries."""
