"""Log compaction: a log keeps at least the latest record of each key. Pure decisions and formats.

A *compacted* log has a tail that was cleaned and a head that was not. The *cleaner point* is where
the head begins. One cleaning takes the keys of the head into an offset map, as far as the map
holds them, then copies all segments before that point without the records that a later one
replaces, and moves the cleaner point there. Offsets never change, and the order never changes.

| module        | what                                                                          |
|---------------|-------------------------------------------------------------------------------|
| `cleanable`   | which part of a log may be cleaned, and which log is cleaned first            |
| `key_hashes`  | keys as 128-bit numbers, many at a time                                       |
| `offset_map`  | the latest offset of each key, in bounded memory                              |
| `batches`     | batches without the records that are replaced                                 |
| `ended_transactions` | which batches were aborted, and when markers go                        |

A log never has a hole. A batch covers the offsets from its base offset to `last_offset_delta`,
also those of records that were taken out; where nothing is left, an empty batch covers them. So a
reader, a follower, the scrubber and recovery still require that each batch begins where the one
before ends, and a batch that is missing is still damage (P65).

Source: Kafka's LogCleaner, KIP-58, KIP-354, KIP-534.
"""
