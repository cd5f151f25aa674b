"""The injection matrix: faults put into real material, diagnosed blind, and scored."""
