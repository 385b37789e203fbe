# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The rows of check.sh: quick or full, model, name, options. A broken rule is run in a configuration that
# finds it.

correct quick slot "get by shm" -DREADER=GET
correct quick slot "view" -DREADER=VIEW
correct quick slot "pin by the node" -DREADER=PIN
correct quick slot "get by shm, put by tcp" -DREADER=GET -DWRITER=TCP
correct full slot "view, put by tcp" -DREADER=VIEW -DWRITER=TCP
correct full slot "pin by the node, put by tcp" -DREADER=PIN -DWRITER=TCP

broken quick slot "no fence before a put's bytes" -DREADER=GET -DNO_FENCE_BEFORE_PUT
broken quick slot "no fence after a put's bytes" -DREADER=GET -DNO_FENCE_AFTER_PUT
broken quick slot "no fence after a get's bytes" -DREADER=GET -DNO_FENCE_AFTER_GET
broken full slot "get: first look at gen relaxed" -DREADER=GET -DGET_STARTS_RELAXED
broken full slot "get: gen not compared again" -DREADER=GET -DGEN_NOT_COMPARED_AGAIN
broken full slot "node changes gen relaxed" -DREADER=GET -DGEN_RELAXED
broken quick slot "gen changes at freeing only" -DREADER=VIEW -DGEN_AT_FREEING
broken quick slot "pins looked at before gen changes" -DREADER=PIN -DPINS_BEFORE_GEN
broken full slot "hazards looked at before gen changes" -DREADER=VIEW -DPINS_BEFORE_GEN
broken full slot "reuse under a view" -DREADER=VIEW -DREUSE_AT_ONCE
broken full slot "reuse under a pin" -DREADER=PIN -DREUSE_AT_ONCE
broken full slot "hazard announced relaxed" -DREADER=VIEW -DANNOUNCE_RELAXED
broken full slot "pin announced relaxed" -DREADER=PIN -DANNOUNCE_RELAXED
broken full slot "hazard beyond the used entries" -DREADER=VIEW -DUSED_AFTER_GEN
broken full slot "hazard dropped relaxed" -DREADER=VIEW -DDROP_RELAXED
broken full slot "pin dropped relaxed" -DREADER=PIN -DDROP_RELAXED
broken quick slot "reclaim before the writer is known gone" -DREADER=GET -DRECLAIM_AT_DISCONNECT
broken full slot "commit does not look for writers" -DWRITER=TCP -DCOMMIT_IGNORES_WRITERS
broken full slot "writer looks at the session first" -DWRITER=TCP -DSESSION_BEFORE_PIN
broken full slot "writer does not look at the session" -DWRITER=TCP -DSESSION_IGNORED
broken full slot "reuse under a writer" -DWRITER=TCP -DREUSE_AT_ONCE

correct quick key "one replace" -DTICKS=6 -DOPS=1
correct quick key "one remove" -DTICKS=6 -DOPS=1 -DFIRST=REMOVE
correct full key "two replaces" -DTICKS=4
correct full key "replace, remove" -DTICKS=4 -DOTHERS=REMOVE
correct full key "remove, remove" -DTICKS=4 -DFIRST=REMOVE -DOTHERS=REMOVE
correct full key "replace, remove, an eviction" -DTICKS=4 -DOTHERS=REMOVE -DEVICTIONS=1
correct full key "two replaces, at rest nothing is left" -DTICKS=4 -DLEAKS
correct full key "replace, remove, at rest nothing is left" -DTICKS=4 -DOTHERS=REMOVE -DLEAKS
correct full key "two replaces of two copies" -DTICKS=4 -DCOPIES=2
correct quick key "a node starts again" -DTICKS=4 -DOPS=1 -DKILLS
correct full key "everybody silent" -DTICKS=4 -DSILENCE=1
correct full key "everybody silent, readers read on" -DTICKS=6 -DOPS=1 -DSILENCE=1 -DSERVE=1

broken full key "publish drops displaced copies" -DTICKS=4 -DPUBLISH_DROPS_DISPLACED
broken full key "publish drops its node's displaced copies" -DTICKS=4 -DPUBLISH_DROPS_OWN
broken full key "withdraw drops displaced copies" -DTICKS=4 -DEVICTIONS=1 -DWITHDRAW_DROPS_DISPLACED
broken full key "delete drops displaced copies" -DTICKS=4 -DFIRST=REMOVE -DOTHERS=REMOVE -DDELETE_DROPS_DISPLACED
broken full key "delete beside a commit" -DTICKS=4 -DOTHERS=REMOVE -DDELETE_BESIDE_COMMIT
broken quick key "release by the client only" -DTICKS=4 -DRELEASE_BY_CLIENT_ONLY
broken full key "RELEASE: BUSY counts as settled" -DTICKS=4 -DBUSY_IS_SETTLED
broken full key "SETTLED ignores what is named" -DTICKS=4 -DSETTLED_IGNORES_NAMED
broken full key "SETTLED: superseded is settled" -DTICKS=4 -DSUPERSEDED_IS_SETTLED
broken quick key "no wait for expiry" -DTICKS=4 -DOPS=1 -DNO_WAIT_FOR_EXPIRY
broken full key "returning counts as gone" -DTICKS=4 -DOPS=1 -DRETURNING_IS_GONE
broken quick key "returning listed as ready" -DTICKS=4 -DOPS=1 -DRETURNING_IS_UP
broken full key "commit while comparing" -DTICKS=4 -DCOMMIT_WHILE_COMPARING
broken quick key "refresh makes an expired record again" -DTICKS=4 -DOPS=1 -DREFRESH_RECREATES
broken quick key "lease without margin" -DTICKS=4 -DOPS=1 -DLEASE_WITHOUT_MARGIN
broken full key "lease counted from the answer" -DTICKS=4 -DOPS=1 -DLEASE_FROM_ANSWER
broken full key "lease never ends" -DTICKS=4 -DOPS=1 -DLEASE_NEVER_ENDS
broken full key "recheck drops a publishing member" -DTICKS=4 -DLEAKS -DRECHECK_DROPS_PUBLISHING
broken quick key "after a silence up at once" -DTICKS=4 -DOPS=1 -DSILENCE=1 -DCALM_IS_UP
broken full key "after a silence commits are not waited for" -DTICKS=4 -DSILENCE=1 -DCALM_LEAVES_COMMITS
broken quick key "missing is expired though nobody beats" -DTICKS=4 -DOPS=1 -DSILENCE=1 -DSERVE=1 -DBEAT_IGNORED
broken quick key "missing is expired though a silence just ended" \
    -DTICKS=4 -DOPS=1 -DSILENCE=1 -DSERVE=1 -DRESUMED_IGNORED
