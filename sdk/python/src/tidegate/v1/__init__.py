"""The messages of the API, generated from proto/ by sdk/python/generate."""
