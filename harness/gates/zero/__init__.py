"""ZR: ZeRO stages and their options, ZeRO++ and ZenFlow."""
