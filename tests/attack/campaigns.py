"""All campaigns, in the order in which they run."""

from attack import bits, commands, edits, kills, messages, operations, readers

CAMPAIGNS = (
    kills.CAMPAIGN,
    operations.CAMPAIGN,
    bits.CAMPAIGN,
    messages.CAMPAIGN,
    commands.CAMPAIGN,
    readers.CAMPAIGN,
    edits.CAMPAIGN,
)
