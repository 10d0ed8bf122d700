"""Detectors for Tidegate: a worker process that speaks the detector protocol over a local socket.

`protocol` frames and serves messages and knows no detector; `moving` and `person` detect and know no socket.
"""
