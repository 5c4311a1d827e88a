"""Cards: the files that a sealed record is shared as, one module for each kind of file, and the zip that holds them.

`data_files` and `traces` write what is sealed, the sheets and what can be redacted; `markdown`, `pdf`,
`bom` and `readme` say what is in a record in the forms that others read, and nothing beyond it; `pack` and `issue` sign
them, with card.html, and put the zips together. Sealing itself is `cohort.records.services`.
"""
