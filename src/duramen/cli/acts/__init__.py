"""The acts of `duramen demo`, one file each, and the stage that they play on."""
