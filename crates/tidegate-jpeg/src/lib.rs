//! A safe face on libjpeg-turbo: scaled planes in and out, and coefficients in place.
