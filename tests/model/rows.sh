# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2086
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
correct full key "two replaces, one unanswered" -DTICKS=4 -DUNANSWERED=1
correct quick key "unanswered replace, remove" -DTICKS=4 -DOTHERS=REMOVE -DUNANSWERED=1
correct full key "two replaces, at rest nothing is left" -DTICKS=4 -DLEAKS
correct full key "replace, remove, at rest nothing is left" -DTICKS=4 -DOTHERS=REMOVE -DLEAKS
correct full key "two replaces of two copies" -DTICKS=4 -DCOPIES=2
correct quick key "a node starts again" -DTICKS=4 -DOPS=1 -DKILLS
correct full key "all nodes silent" -DTICKS=5 -DSILENCE=1
correct quick key "all nodes silent, readers read on" -DTICKS=8 -DOPS=1 -DSILENCE=1 -DSERVE=1
correct full key "the same, a remove" -DTICKS=8 -DOPS=1 -DSILENCE=1 -DSERVE=1 -DFIRST=REMOVE
correct full key "a replace, Redis comes back empty" -DTICKS=4 -DOPS=1 -DLOSSES=1
correct full key "a remove, Redis comes back empty" -DTICKS=4 -DOPS=1 -DLOSSES=1 -DFIRST=REMOVE
correct full key "the same, to a node that was away" -DTICKS=6 -DOPS=1 -DLOSSES=1 -DLOSS_AFTER=3 -DFIRST=REMOVE

broken full key "publish drops displaced copies" -DTICKS=4 -DPUBLISH_DROPS_DISPLACED
broken full key "publish drops its node's displaced copies" -DTICKS=4 -DPUBLISH_DROPS_OWN
broken full key "withdraw drops displaced copies" -DTICKS=4 -DEVICTIONS=1 -DWITHDRAW_DROPS_DISPLACED
broken full key "delete drops displaced copies" -DTICKS=4 -DFIRST=REMOVE -DOTHERS=REMOVE -DDELETE_DROPS_DISPLACED
broken full key "delete beside a commit" -DTICKS=4 -DOTHERS=REMOVE -DDELETE_BESIDE_COMMIT
broken quick key "release by the client only" -DTICKS=4 -DRELEASE_BY_CLIENT_ONLY
broken full key "RELEASE: BUSY counts as settled" -DTICKS=4 -DBUSY_IS_SETTLED
broken quick key "unanswered replace keeps the older copy" \
    -DTICKS=1 -DOTHERS=REMOVE -DUNANSWERED=1 -DIN_DOUBT_KEEPS_OLDER
broken quick key "unanswered replace frees the older copy late" \
    -DTICKS=1 -DOTHERS=REMOVE -DUNANSWERED=1 -DIN_DOUBT_FREES_LATE
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
broken quick key "missing is expired at once" -DTICKS=4 -DOPS=1 -DSILENCE=1 -DEXPIRED_AT_ONCE
broken quick key "SETTLED looks for calm later" -DTICKS=6 -DOPS=1 -DSILENCE=1 -DCALM_READ_LATER
broken full key "missing is expired though no node beats" -DTICKS=8 -DOPS=1 -DSILENCE=1 -DSERVE=1 -DBEAT_IGNORED
broken quick key "missing is expired though a silence just ended" \
    -DTICKS=5 -DOPS=1 -DSILENCE=1 -DSERVE=1 -DRESUMED_IGNORED

# Redis comes back empty.
lossy="-DTICKS=4 -DOPS=1 -DLOSSES=1"
broken full key "a new directory settled at once" $lossy -DNEW_IS_SETTLED
broken full key "id not read again behind a commit" $lossy -DID_NOT_READ_AGAIN
broken full key "id compared with what is known later" $lossy -DID_COMPARED_LATE
broken full key "born not raised" $lossy -DBORN_NOT_RAISED
broken full key "restore without a limit in time" $lossy -DRESTORE_WITHOUT_LIMIT
broken full key "a late node restores" $lossy -DFIRST=REMOVE -DLATE_RESTORES
broken full key "listed as restoring too late" $lossy -DFIRST=REMOVE -DLISTED_LATE
broken full key "SETTLED: restored is not named" $lossy -DFIRST=REMOVE -DSETTLED_IGNORES_LOCATIONS
broken full key "SETTLED: a location of an expired node" $lossy -DFIRST=REMOVE -DLOCATION_EXPIRES
broken full key "a node cut off alone restores" \
    -DTICKS=6 -DOPS=1 -DLOSSES=1 -DLOSS_AFTER=3 -DFIRST=REMOVE -DLIVED_IGNORED
broken full key "a node cut off without a witness restores" \
    -DTICKS=6 -DOPS=1 -DLOSSES=1 -DLOSS_AFTER=3 -DFIRST=REMOVE -DTOLD_IGNORED

correct quick lease "within the host" -DBY=SHM
correct quick lease "by the lender's threads" -DBY=TCP
correct quick lease "reads by a device" -DBY=READS -DOPS=3
correct quick lease "writes by a device" -DBY=RDMA -DOPS=3
correct quick lease "writes by threads of one client" -DBY=RDMA -DOPS=3 -DSESSIONS=1
correct quick lease "a lease ends by its time" -DBY=RDMA -DTTL -DONCE
correct quick lease "a session ends" -DBY=RDMA -DSESSION_ENDS
correct full lease "three leases" -DBY=RDMA -DLEASES=3 -DONCE
correct full lease "three leases, threads of one client" -DBY=RDMA -DLEASES=3 -DSESSIONS=1 -DONCE
correct full lease "all may end, sessions, too" -DBY=RDMA -DTTL -DSESSION_ENDS

broken quick lease "no mark" -DBY=SHM -DNO_MARK
broken quick lease "gen looked at before the mark" -DBY=SHM -DGEN_BEFORE_MARK
broken quick lease "gen not looked at under the mark" -DBY=SHM -DGEN_NOT_COMPARED
broken quick lease "mark cleared before the copy" -DBY=SHM -DMARK_CLEARED_FIRST
broken quick lease "told before the copy" -DBY=SHM -DTOLD_FIRST
broken quick lease "recall does not look for marks" -DBY=SHM -DMARKS_LEFT
broken quick lease "recall looks before gen changes" -DBY=SHM -DLOOKS_FIRST
broken quick lease "gen changes when the recall is over" -DBY=SHM -DGEN_CHANGES_LAST
broken quick lease "a slot has its generation again" -DBY=SHM -DGEN_AGAIN
broken quick lease "page of a killed process stays" -DBY=SHM -DPAGE_STAYS
broken quick lease "page of a living process goes" -DBY=SHM -DPAGE_DROPPED_EARLY
broken quick lease "recall does not wait for pins" -DBY=TCP -DPINS_LEFT
broken quick lease "recall looks for pins before gen changes" -DBY=TCP -DLOOKS_FIRST
broken quick lease "pinned while the client is waited for" -DBY=TCP -DPINNED_FOR_ALL
broken quick lease "gen looked at for the first part only" -DBY=TCP -DPINNED_ONCE
broken quick lease "verdict behind the bytes forgotten" -DBY=TCP -DVERDICT_FORGOTTEN
broken quick lease "read: gen not looked at" -DBY=READS -DGEN_NOT_COMPARED
broken quick lease "read: gen looked at before the bytes" -DBY=READS -DGEN_BEFORE_BYTES
broken quick lease "keys stay" -DBY=RDMA -DKEYS_STAY
broken quick lease "who enters is not counted" -DBY=RDMA -DENTERS_UNSEEN
broken quick lease "a write counts when it is posted" -DBY=RDMA -DACKED_WHEN_POSTED
broken quick lease "left though a write is in doubt" -DBY=RDMA -DLEAVES_IN_DOUBT
broken quick lease "one reach leaves for all" -DBY=RDMA -DSESSIONS=1 -DLEAVES_FOR_ALL
broken quick lease "keys serve any lease" -DBY=RDMA -DLEASES=3 -DONCE -DKEYS_SERVE_ANY_LEASE
broken quick lease "the pass stays when keys are made void" -DBY=RDMA -DLEASES=3 -DONCE -DOPS=3 -DPASS_STAYS
broken quick lease "left under an old pass" -DBY=RDMA -DLEASES=3 -DSESSIONS=1 -DONCE -DLEAVE_OF_OLD_PASS
broken quick lease "entered with new keys and an old pass" -DBY=RDMA -DLEASES=3 -DONCE -DENTER_BEFORE_NEW_PASS
broken quick lease "recall does not wait for another's cut" -DBY=RDMA -DTTL -DRECALL_LEAVES_THE_CUT
broken quick lease "a session counts as gone too early" -DBY=RDMA -DSESSION_ENDS -DGONE_BEFORE_CUT_OFF

correct quick session "connections break in any order"
broken quick session "links of any term write" -DANY_TERM
broken quick session "a term does not end" -DTERM_STAYS
broken quick session "reservations are freed before links are cut off" -DFREED_BEFORE_CUT_OFF

correct quick ring "six commands, two slots"
correct quick ring "an abort at any time" -DABORT
correct quick ring "a status is published after the count" -DSTATUS_AFTER_DONE
correct full ring "ten commands, two slots" -DCOMMANDS=10

broken quick ring "a slot is reused at once" -DREUSE_AT_ONCE
broken quick ring "the first half has no stamp" -DFIRST_HALF_UNSTAMPED
broken quick ring "the second half has no stamp" -DSECOND_HALF_UNSTAMPED
broken quick ring "stamps repeat with the ring" -DSTAMPS_REPEAT
broken quick ring "the count has what completed out of order" -DDONE_COUNTS_ANY
broken quick ring "a status without a stamp" -DSTATUS_UNSTAMPED
broken quick ring "a status without a stamp, published after the count" -DSTATUS_UNSTAMPED -DSTATUS_AFTER_DONE
broken quick ring "a status is read after its slot was reused" -DSTATUS_AFTER_REUSE
broken quick ring "the status is published before the bytes" -DSTATUS_BEFORE_DATA
broken quick ring "no fence before the bytes are read" -DNO_FENCE_BEFORE_DATA
broken quick ring "a wait does not see the abort" -DABORT -DABORT_UNSEEN
