"""The controller: requests, heartbeats and the clock become changes of the metadata."""
