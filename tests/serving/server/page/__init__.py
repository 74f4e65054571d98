"""Tests of the page share a browser and a server, which end before other tests run."""
