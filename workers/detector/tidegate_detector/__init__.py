"""Detectors for Tidegate: a worker process that speaks the detector protocol over a local socket.

`protocol` frames messages and `server` serves them; neither knows a detector. `moving`, `person`, `face`, `recognize` and `onnx` detect
and know no socket.
"""
