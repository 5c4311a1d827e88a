"""The signed status of a record: what happened since its seal, issued anew when that changes, and added to every
download of its cards."""
